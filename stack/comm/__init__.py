"""Communication between the ranks of a job, written once over the contract."""
