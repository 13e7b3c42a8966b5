-- The server's clock, in milliseconds; and what stands for an expiry that never comes, as Redisson
-- writes it.
local time = redis.call('TIME')
local now, NEVER = time[1] * 1000 + math.floor(time[2] / 1000), 922337203685477

