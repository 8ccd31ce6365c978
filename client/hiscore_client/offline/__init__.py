"""Offline scoring of a whole data set with running servers: a Ray Data job that can be killed and resumed."""
