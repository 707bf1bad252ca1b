"""A test internet: long, lossy links between network namespaces, made in user space because netem is missing."""
