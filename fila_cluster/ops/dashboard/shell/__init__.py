"""The surroundings of every page: frame, colours and links, the state of the cluster, and feedback on actions."""
