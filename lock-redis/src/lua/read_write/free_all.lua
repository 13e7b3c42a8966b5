-- free: how the script ends that frees the lock of all holders.
local told = tell(publish, channel, '1')
unlink(KEYS[1])
return told
