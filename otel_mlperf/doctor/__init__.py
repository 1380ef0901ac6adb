"""Diagnosis of this machine, a run and its endpoints, with a remedy for each problem."""
