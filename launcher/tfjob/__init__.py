"""TFJobs of Kubeflow as cluster specs. Pure: text in, text and remarks out."""
