-- What goes before scripts of read-write locks, for a fair one: readers wait in the queue, and not
-- for a writer.
local function compete()
end

