-- What goes before close.lua, for a fair read-write lock.
--
-- ARGV[#ARGV] "1" if dead readers may be ended with this one, because no slot is moving
local sweeps = table.remove(ARGV) == '1'

