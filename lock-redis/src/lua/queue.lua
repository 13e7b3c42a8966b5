-- The queue of a lock's waiters, a sorted set. A waiter is two members of one score, which is the
-- time of its arrival in microseconds of this server's clock:
--
-- - its name: a client, whose threads wait for their turn inside of it; or, in strict order, an
--   owner
-- - its name again and, each behind a space, FIELDS of its last attempt; they sort right behind it
--
-- The fields are the owner, the number of the attempt, for how long in milliseconds the waiter
-- counts as present after an attempt, the lease in milliseconds of a grant by a release, two words
-- for the tokens (`keep` and `reserve` of grant.lua, "-" for none), the score once more, which a
-- server writes slowly, and when the attempt came, in microseconds of this server's clock. The
-- number is "-", or "r" of a reader, if a release may not grant the lock to the waiter, but only
-- tells it that it is next; and "0" if the waiter was passed over, which is present for as long as
-- pass_over says.
local FIELDS = '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$'

-- The fields of the waiter `name` in `text`, and first, for how long in milliseconds it is present
-- yet: nothing if it is not, or its fields are missing. If the attempt lies ahead by more than a
-- second, the clock was set back since, and the waiter may be dead.
local function read_fields(name, text)
  local owner, attempt, presence, lease, keep, reserve, position, at =
    string.match(text or '', FIELDS, #name + 2)
  local passed = owner and (timestamp() - at) / 1000
  if passed and passed > -1000 and passed < tonumber(presence) then
    return presence - passed, owner, attempt, position, lease, keep, reserve
  end
  return nil
end

-- A script looks at so many waiters at a time, and so many times.
local MOST, TIMES = 100, 10

-- The key is deleted with its last waiter. Where all of them died it lasts for so long, in
-- milliseconds. Not renewed with each attempt, which would be one more command.
local LASTS = 120000

-- Publishes to the client of this owner, and to no other. Not by replicas, too, which would not
-- count who hears it there; but a cluster's bus tells them (see `ended` in wakeups/table/mod.rs).
local function tell_owner(publish, queue, owner, text)
  local colon = string.find(owner, ':', 1, true) or 0
  local inbox = queue .. ':' .. string.sub(owner, 1, colon - 1)
  pcall(redis.set_repl, redis.REPL_NONE)
  local reached = redis.pcall(publish, inbox, text)
  pcall(redis.set_repl, redis.REPL_ALL)
  return reached
end

-- Skips this waiter until its next attempt, because it is not connected, or gave up in favour of
-- another thread of its client. It keeps its place, but not for long.
local PASSED_OVER = 3000
local function pass_over(queue, position, text)
  local name, owner, behind = string.match(text, '^(%S+) (%S+) %S+ %S+ (.*) %S+$')
  local left = math.ceil(math.min(read_fields(name, text) or 1, PASSED_OVER))
  redis.call('ZREM', queue, text)
  redis.call('ZADD', queue, position,
    table.concat({name, owner, '0', left, behind, timestamp()}, ' '))
end

-- The first waiter that is present and not passed over, or `own`, from the place `from` on: its
-- name; for how long in milliseconds it is present yet; its owner; the number of its attempt; its
-- position; its fields as they are stored; its place; its lease and its two words for the tokens.
-- Nothing if there is none; behind too many others it is not known yet: an empty text.
local function first_present(queue, own, from)
  local place, members = from or 0, 2
  for _ = 1, TIMES do
    -- A number is written slowly, too.
    local first = place == 0 and '0' or place
    local last = place == 0 and members == 2 and '1' or place + members - 1
    local found = redis.call('ZRANGE', queue, first, last)
    if not found[1] then
      return nil
    end
    for i = 1, #found, 2 do
      local name, text = found[i], found[i + 1]
      if name == own then
        return name
      end
      local left, owner, attempt, position, lease, keep, reserve = read_fields(name, text)
      if not left then
        redis.call('ZREM', queue, name, text or name)
      elseif attempt == '0' then
        place = place + 2
      else
        return name, left, owner, attempt, position, text, place, lease, keep, reserve
      end
    end
    -- Of many that were passed over more at a time.
    members = 2 * MOST
  end
  return '', 50, ''
end

-- Grants the lock, which is free, to the first waiter that is present and connected: the grant is
-- written, then published, and taken back if that reached no connection, so that no client has seen
-- it; then that waiter is passed over. `own` is the waiter that runs this script: it is not granted
-- the lock, but only returned. `turns` goes with the message: see pass_on.
--
-- Returns nothing if there is no waiter, or none is reached; else the waiter's name, and for how
-- long it has waited, in microseconds. If it was only told, nothing stands for that time, and
-- behind it comes for how long the waiter is present yet, in milliseconds. Last comes true if the
-- server refused to grant or to publish.
local function grant_next(lock, queue, publish, own, turns)
  local from
  for _ = 1, MOST do
    local name, left, owner, attempt, position, text, place, lease, keep, reserve =
      first_present(queue, own, from)
    if not text then
      return name ~= '' and name or nil
    end
    local reached
    if not tonumber(attempt) then
      reached = tell_owner(publish, queue, owner, owner)
      if type(reached) ~= 'table' and reached > 0 then
        return name, nil, left
      end
    else
      -- First: what cannot be removed must not be granted.
      redis.call('ZREM', queue, name, text)
      -- As in keys.rs.
      local is_tagged = string.find(lock, '{', 1, true)
      local counter = 'redisson_lock_token:' .. (is_tagged and lock or '{' .. lock .. '}')
      -- Slots are moved in a cluster only, which has sharded channels where a release grants.
      local is_done, token = pcall(grant, lock, counter, false, lease, owner, keep ~= '-' and keep,
        string.find(reserve, '[1-9]') and reserve, not own and publish == 'SPUBLISH')
      reached = is_done and token or {}
      if type(reached) ~= 'table' then
        reached = tell_owner(publish, queue, owner, owner .. ' ' .. attempt .. ' ' .. token .. ' '
          .. reserve .. ' ' .. turns .. ' ' .. lock)
        if type(reached) ~= 'table' and reached > 0 then
          return name, timestamp() - position
        end
        if redis.pcall('TYPE', lock).ok == 'hash' then
          -- Redisson's readers may have it, too, with a lease as short as this owner's.
          redis.call('HDEL', lock, owner)
        else
          redis.call('DEL', lock)
        end
      end
      redis.call('ZADD', queue, position, name, position, text)
      redis.call('PEXPIRE', queue, math.ceil(math.max(redis.call('PTTL', queue), LASTS, left)))
    end
    if type(reached) == 'table' then
      return nil, nil, nil, true
    end
    pass_over(queue, position, text)
    from = place + 2
  end
  return nil
end

