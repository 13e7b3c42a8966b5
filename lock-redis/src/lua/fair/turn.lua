-- What goes before acquire.lua of permits, for a fair semaphore, in place of unordered.lua.
--
-- ARGV[#ARGV] for how long, in milliseconds, the owner counts as waiting from now on; "0" if it
-- does not wait
local presence = table.remove(ARGV)

-- For how long the owner counts as waiting that is next, if it is another one. This one waits then,
-- or if there are too few for it.
local function before_us(is_enough, limit)
  if tonumber(ARGV[2]) > limit then
    -- It would keep all others out until the limit rises.
    if leave(waiter) > 0 then
      tell_next(ARGV[6])
    end
    return nil
  end
  local owner, left = first(now)
  local is_next = not owner or owner == waiter
  if not (is_next and is_enough) then
    if presence ~= '0' then
      enter(now, waiter, presence, '0')
    end
  elseif owner then
    -- What fails from here on ends the wait.
    leave(waiter)
  end
  return not is_next and left or nil
end

-- What is left may be enough for the owner that is next now.
local function let_next_in(free)
  if free > 0 then
    tell_next(ARGV[6])
  end
end

