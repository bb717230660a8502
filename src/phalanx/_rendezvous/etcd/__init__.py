"""Who leads, by a store that outlives every host: etcd elects one, and has the last word."""
