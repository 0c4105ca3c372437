"""The rows of an evaluation, as the model reads them, and what can be wrong with a job."""
