-- What goes before acquire_read.lua, for a fair lock, behind turn.lua.
--
-- KEYS[#KEYS] the queue   see queue.lua
-- ARGV[4] the command that publishes

local function before_us(is_free)
  return others_before(clock(), ARGV[2], is_free)
end

-- Readers that are next come in one after the other. One beside its own writer was not asked
-- whether it is next.
local function let_next_in(mode)
  if mode == 'write' then
    leave(ARGV[2])
    return
  end
  local owner = first(clock())
  if owner and owner ~= '' and not string.find(owner, ':write$') then
    tell_owner(ARGV[4], owner, owner)
  end
end

