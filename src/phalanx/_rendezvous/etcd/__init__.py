"""Who leads, by keys that outlive every host: etcd elects one, and has the last word."""
