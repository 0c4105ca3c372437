"""Training algorithms: each defines its models, its loss sums and weights, and where its windows come from."""
