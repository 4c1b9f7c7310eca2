"""How much longer tests on an engine and a cluster wait than a machine with nothing else to do takes."""

# With fifty processes that want two cores, importing TensorFlow took 160 s, and tasks that are there in seconds were there in minutes.
# A test that passes waits no longer for it.
BUSY = 3.0
