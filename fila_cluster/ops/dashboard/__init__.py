"""The operations dashboard: NiceGUI pages inside the observer. They show its last answer of the cluster, and act as a client."""
