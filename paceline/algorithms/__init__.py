"""What is learnt: each algorithm names its roles, its loss sums and their weights, and where its windows come from."""
