-- How acquire.lua ends where the lock or its queue is there, or the owner is closed.
return attempt(found, KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1], ARGV[2], keep, reserve, ARGV[5])
