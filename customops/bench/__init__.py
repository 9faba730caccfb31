"""`python -m customops.bench`: the operators beside their peers and the read bandwidth."""
