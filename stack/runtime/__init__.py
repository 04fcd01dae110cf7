"""The runtime: compiled plans on a device's timeline, and the arrays that they read and write."""
