"""The trainer's side of the link: requests in flight, retries, replicas and shards."""
