"""Training algorithms: each defines its models, loss sums and weights, and where its windows come from."""
