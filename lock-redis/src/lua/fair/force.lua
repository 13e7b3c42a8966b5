-- What goes behind force.lua, for a fair lock.
--
-- KEYS[#KEYS] the queue   see queue.lua
tell_next(publish)

