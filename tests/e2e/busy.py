"""The factor for all deadlines of tests on an engine and a cluster, which are those of an idle machine."""

# With fifty processes on two cores, importing TensorFlow took 160 s, and tasks that start in seconds took minutes.
# The factor does not make a passing test slower.
BUSY = 3.0
