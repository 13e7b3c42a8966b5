-- What goes before acquire.lua of permits, for a fair semaphore, behind turn.lua.

local function before_us(is_enough, limit)
  if tonumber(ARGV[2]) > limit then
    -- It would keep all others out until the limit rises.
    if leave(waiter) > 0 then
      tell_next(ARGV[6])
    end
    return nil
  end
  return others_before(now, waiter, is_enough)
end

-- What is left may be enough for the owner that is next now.
local function let_next_in(free)
  if free > 0 then
    tell_next(ARGV[6])
  end
end

