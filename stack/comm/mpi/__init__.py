"""MPI as an engine of groups: its own transports move the data (`HAL_COMM_ENGINE=mpi`)."""
