//! distlock on Redis Cluster, and the quorum (Redlock) over independent masters. Nothing is here yet: use one Redis server with `lock-redis`.
