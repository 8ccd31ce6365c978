"""Scores a whole data set through running servers: a Ray Data job that can be killed and resumed."""
