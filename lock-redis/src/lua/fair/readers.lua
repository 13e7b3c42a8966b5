-- What goes before acquire.lua of a fair lock, for a writer: the one that is next looks whether
-- readers that died keep it out.
local function tells(key, is_next)
  return is_next and readers_of(key) or {}
end

