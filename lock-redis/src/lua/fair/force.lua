-- What goes behind force.lua, for a fair lock.
--
-- KEYS[2] the queue       see queue.lua
tell_next(KEYS[2], publish)

