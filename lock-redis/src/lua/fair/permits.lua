-- What goes before scripts of permits, for a fair semaphore: they find no words but their own.
--
-- KEYS[#KEYS] the queue   see queue.lua
-- ARGV[#ARGV] the owner, as it stands there
local waiter = table.remove(ARGV)
table.remove(KEYS)

