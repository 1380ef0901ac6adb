"""Diagnosis of this machine, a run and its endpoints, with remedies."""
