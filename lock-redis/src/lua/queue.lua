-- The queue of a lock's waiters, a sorted set. A waiter is two members of one score, which is the
-- time of its arrival in microseconds of this server's clock:
--
-- - its name: a client, whose threads wait for their turn inside of it; or, in strict order, an
--   owner
-- - its name again and, each behind a space, FIELDS of its last attempt; they sort right behind it
--
-- The fields are the owner, the number of the attempt, for how long in milliseconds the waiter
-- counts as present after an attempt, the lease in milliseconds of a grant by a release, two words
-- for the tokens (`keep` and `reserve` of grant.lua, "-" for none), and up to when the waiter
-- counts as present, in milliseconds of this server's clock. The number is "-", or "r" of a reader,
-- if a release may not grant the lock to the waiter, but only tells it that it is next; and "0" if
-- the waiter was passed over.
local FIELDS = '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$'

-- A script looks at so many waiters at most.
local MOST = 100

-- The key is deleted with its last waiter. Where all of them died it lasts for so long, in
-- milliseconds. Not renewed with each attempt, which would be one more command.
local LASTS = 120000

-- The counter of the lock's tokens, as in keys.rs.
local function counter_of(lock)
  if string.find(lock, '{', 1, true) then
    return 'redisson_lock_token:' .. lock
  end
  return 'redisson_lock_token:{' .. lock .. '}'
end

local function client_of(owner)
  return string.match(owner, '^[^:]*')
end

-- The waiter at this place, from 0 on: {its name, its position, its fields as they are stored}.
local function waiter_at(queue, place)
  return redis.call('ZRANGE', queue, place * 2, place * 2 + 1, 'WITHSCORES')
end

-- The fields of this waiter as they are stored, and its position; nothing if it does not wait.
local function fields_of(queue, name)
  local position = redis.call('ZMSCORE', queue, name)[1]
  if not position then
    return nil
  end
  local found = redis.call('ZRANGEBYSCORE', queue, position, position)
  for _, text in ipairs(found) do
    if string.sub(text, 1, #name + 1) == name .. ' ' then
      return text, position
    end
  end
  return name, position
end

-- For how long this waiter counts as present yet. If more is left than there was, the clock was set
-- back since, and the waiter may be dead.
local function presence_left(presence, until_)
  local left = until_ - math.floor(timestamp() / 1000)
  return left <= tonumber(presence) and left or 0
end

-- Publishes to the client of this owner, and to no other.
local function tell_owner(publish, queue, owner, text)
  return redis.pcall(publish, queue .. ':' .. client_of(owner), text)
end

-- Skips this waiter until its next attempt, because it is not connected, or gave up in favour of
-- another thread of its client. It keeps its place, but not for long.
local PASSED_OVER = 3000
local function pass_over(queue, position, text)
  local before, until_ = string.match(text, '^(.*) (%S+)$')
  local last = math.min(tonumber(until_), math.floor(timestamp() / 1000) + PASSED_OVER)
  local marked = string.gsub(before, '^(%S+ %S+) %S+', '%1 0') .. ' ' .. string.format('%.0f', last)
  redis.call('ZREM', queue, text)
  redis.call('ZADD', queue, position, marked)
end

-- Grants the lock, which is free, to the first waiter that is present and connected. First an empty
-- message goes to its client, which ignores it: where that reaches no connection, the waiter is
-- passed over. So no grant is published that is not written, and none is ever taken back. `own` is
-- the waiter that runs this script: it is not granted the lock, but only returned. `turns` goes
-- with the message: see pass_on.
--
-- Returns nothing if there is no waiter, or none is reached; else the waiter's name, and for how
-- long it has waited, in microseconds. If it was only told, nothing stands for that time, and
-- behind it comes for how long the waiter is present yet, in milliseconds.
local function grant_next(lock, queue, publish, own, turns)
  local place = 0
  for _ = 1, MOST do
    local name, position, text = unpack(waiter_at(queue, place))
    if not name or name == own then
      return name
    end
    local _, owner, attempt, presence, lease, keep, reserve, until_ =
      string.match(text or '', FIELDS)
    local left = owner and presence_left(presence, until_) or 0
    if left <= 0 then
      redis.call('ZREM', queue, name, text or name)
    elseif attempt == '0' then
      place = place + 1
    else
      local is_told = not tonumber(attempt)
      local reached = tell_owner(publish, queue, owner, is_told and owner or '')
      if type(reached) == 'table' then
        return nil
      elseif reached == 0 then
        pass_over(queue, position, text)
        place = place + 1
      elseif is_told then
        return name, nil, left
      else
        -- First: what cannot be removed must not be granted.
        redis.call('ZREM', queue, name, text)
        local token = grant(lock, counter_of(lock), false, lease, owner, keep ~= '-' and keep,
          string.find(reserve, '[1-9]') and reserve)
        if type(token) == 'table' then
          redis.call('ZADD', queue, position, name, position, text)
          redis.call('PEXPIRE', queue, LASTS)
          return nil
        end
        local message = {owner, attempt, token, reserve, turns, lock}
        tell_owner(publish, queue, owner, table.concat(message, ' '))
        return name, timestamp() - position
      end
    end
  end
  return nil
end

-- The first waiter that is present and not passed over, or `own`; for how long it is present yet,
-- its owner, the number of its attempt, its position and its fields. Nothing if there is none;
-- behind too many others it is not known yet: an empty text.
local function first_present(queue, own)
  local place = 0
  for _ = 1, MOST do
    local name, position, text = unpack(waiter_at(queue, place))
    if not name or name == own then
      return name
    end
    local _, owner, attempt, presence, _, _, _, until_ = string.match(text or '', FIELDS)
    local left = owner and presence_left(presence, until_) or 0
    if left <= 0 then
      redis.call('ZREM', queue, name, text or name)
    elseif attempt == '0' then
      place = place + 1
    else
      return name, left, owner, attempt, position, text
    end
  end
  return '', 50, ''
end

-- Tells the first waiter that it is the first: it attempts at once. If the answer of PUBLISH
-- `counts` all clients that it reaches, a waiter that is not connected is passed over.
local function tell_next(queue, publish, counts)
  for _ = 1, MOST do
    local name, _, owner, _, position, text = first_present(queue)
    if not name or name == '' then
      return
    end
    if tell_owner(publish, queue, owner, owner) ~= 0 or not counts then
      return
    end
    pass_over(queue, position, text)
  end
end

-- Behind the release of a lock: grants it to the next waiter. `others` is how many clients were
-- told of the release that are in no queue: those get a chance, and the next waiter is only told.
-- `turns` is "free" where the answer of PUBLISH does not count all clients that it reaches: there,
-- too. Otherwise it is what came with the holder's own grant, if a release granted it the lock: how
-- many such grants there were in a row, a colon, and when the first one was, in milliseconds. After
-- some in a row one release frees the lock, so that clients that poll have a chance.
local IN_A_ROW, ROW_MILLIS = 4, 100
-- Where waiters wait for so long, in microseconds, the one that is next after a grant is told so:
-- it finds out when that grant ends without a release.
local LONG = 500000
local function pass_on(lock, queue, publish, others, turns)
  local count, since = string.match(turns or '', '^(%d+):(%d+)$')
  local now = math.floor(timestamp() / 1000)
  local is_over = count and count + 0 >= IN_A_ROW and now - since >= ROW_MILLIS
  if others == 0 and turns ~= 'free' and not is_over then
    count, since = (count or 0) + 1, since or string.format('%.0f', now)
    local row = string.format('%.0f:%s', count, since)
    local name, waited = grant_next(lock, queue, publish, nil, row)
    if name and (not waited or waited < LONG) then
      return
    end
  end
  tell_next(queue, publish, turns ~= 'free')
end

-- How a release ends that told the waiters of other libraries, where there is a queue: `told` is
-- what tell.lua returned, and `turns` as for pass_on. The lock is free whatever is found under the
-- queue's key. Returns what release.lua returns.
local function let_next_in(lock, publish, told, turns)
  local is_refused = type(told) == 'table'
  pcall(pass_on, lock, queue_of(lock), publish, is_refused and 1 or told - 1, turns)
  return is_refused and told or 1
end

-- Tells the waiters of other libraries, and the next of ours, that a lock ends earlier or later.
-- Returns what tell.lua returns.
local function tell_all(lock, publish, channel)
  local told = tell(publish, channel, '0')
  pcall(tell_next, queue_of(lock), publish)
  return told
end

-- This waiter waits no longer, if its last attempt was this owner's; of any owner if that is left
-- out.
local function leave(queue, name, owner)
  local text = fields_of(queue, name)
  if text and (not owner or string.match(text, '^%S+ (%S+)') == owner) then
    redis.call('ZREM', queue, name, text)
    return true
  end
  return false
end

-- The first waiter of a free lock, which does not take it, waits no longer.
local function skip_next(lock, publish)
  local queue = queue_of(lock)
  pcall(function()
    local name = first_present(queue)
    if name then
      leave(queue, name)
      pass_on(lock, queue, publish, 0)
    end
  end)
end

-- This waiter waits from now on, or still. `wait` is ARGV[5] of acquire.lua, and `has_queue`
-- whether others wait; nothing if that is not known. Returns 1 if it is the first, else 0.
local function enter(queue, has_queue, wait, owner, keep, reserve)
  local name, attempt, presence, lease = string.match(wait, '^(%S+) (%S+) (%S+) (%S+)')
  local now = timestamp()
  local until_ = math.floor(now / 1000) + presence
  local fields = {name, owner, attempt, presence, lease, keep or '-',
    keep and (reserve or '0') or '-', string.format('%.0f', until_)}
  local text = table.concat(fields, ' ')
  local added = redis.pcall('ZADD', queue, 'NX', now, name, now, text)
  if type(added) == 'table' then
    -- A full server refuses what takes memory as a script's first write, and so new waiters.
    if not fields_of(queue, name) then
      error(added.err)
    end
    added = 0
  end
  if added < 2 then
    -- It waits already, and keeps its place.
    redis.call('ZREM', queue, text)
    local before, position = fields_of(queue, name)
    if before ~= name then
      redis.call('ZREM', queue, before)
    end
    redis.call('ZADD', queue, position, text)
  end
  if added < 2 or not has_queue or tonumber(presence) > LASTS or string.find(now, '0$') then
    -- Others may count as present for longer.
    redis.call('PEXPIRE', queue, math.max(redis.call('PTTL', queue), LASTS, tonumber(presence)))
  end
  if added < 2 or has_queue == nil then
    return first_present(queue, name) == name and 1 or 0
  end
  return has_queue and 0 or 1
end

-- An owner that does not hold the lock waits no longer: under its own name, or that of its client,
-- which has no number. Others may come in beside the holders once it is not the first any more.
-- With `turns` "stay" another thread of its client waits in its place, and attempts soon.
local function give_up(lock, owner, publish, turns)
  if turns == 'none' then
    return
  end
  local queue, shared = queue_of(lock), string.gsub(owner, ':%d+', '', 1)
  if turns == 'stay' then
    local text, position = fields_of(queue, shared)
    if text and string.match(text, '^%S+ (%S+)') == owner then
      pass_over(queue, position, text)
    end
    return
  end
  local first = first_present(queue)
  if leave(queue, owner, owner) or leave(queue, shared, owner) then
    if redis.call('EXISTS', lock) == 0 then
      pass_on(lock, queue, publish, 0, turns)
    elseif first == owner or first == shared then
      tell_next(queue, publish)
    end
  end
end

-- For a lock that is free: for how long others hold it or go first, in milliseconds; nothing if it
-- is this waiter's turn, which then waits no longer. `wait` is ARGV[5] of acquire.lua.
local function others_before(lock, queue, name, wait)
  local publish = wait and string.match(wait, '%S+$') or '-'
  if publish ~= '-' then
    -- It ended without a release.
    local since = string.format('%.0f', math.floor(timestamp() / 1000))
    local next, _, left = grant_next(lock, queue, publish, name, '1:' .. since)
    if next and next ~= name then
      return left or redis.call('PTTL', lock)
    end
  end
  local next, left = first_present(queue, name)
  if next and next ~= name then
    return left
  end
  leave(queue, name)
  return nil
end

