"""`headwater forget`: a sample gone from data, models and labels, here and at stores."""
