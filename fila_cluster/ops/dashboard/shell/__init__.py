"""What every page stands in: its frame, colours and links, the state of the cluster, and feedback on actions."""
