-- Tells the first waiter that it is the first: it attempts at once. If the answer of PUBLISH
-- `counts` all clients that it reaches, a waiter that is not connected is passed over.
local function tell_next(queue, publish, counts)
  local from
  for _ = 1, MOST do
    local _, _, owner, _, position, text, place = first_present(queue, nil, from)
    if not text or tell_owner(publish, queue, owner, owner) ~= 0 or not counts then
      return
    end
    pass_over(queue, position, text)
    from = place + 2
  end
end

-- Behind the release of a lock: grants it to the next waiter. `told` is what tell.lua returned: if
-- clients were told of the release that are in no queue, those get a chance, and the next waiter is
-- only told. That is also so with `turns` "free", where the answer of PUBLISH does not count all
-- clients that it reaches. If a release granted the lock to the holder, `turns` is what came with
-- that grant: when the first such grant in a row was, in microseconds, and a colon for each, up to
-- as many as are a row. After a row one release frees the lock, so that clients that poll have a
-- chance; and while it is young, clients in no queue need not be told (nothing in `told`). With
-- anything else in `turns` a row begins, as soon as no client was told that is in no queue.
local ROW, ROW_MICROS = '::::', 100000
-- Where waiters wait for so long, in microseconds, the one that is next after a grant is told so:
-- it finds out when that grant ends without a release.
local LONG = 500000
local function pass_on(lock, queue, publish, told, turns, channel)
  local since, row = string.match(turns or '', '^(%d+)(:+)$')
  local counts = turns ~= 'free'
  local age = since and timestamp() - since
  -- Set back, the clock says nothing about the row.
  local is_young = age and age >= 0 and age < ROW_MICROS
  if not told and not is_young then
    told = tell(publish, channel, '0')
  end
  -- Redisson's readers come in beside a mutex, and then its end frees nothing. Looked for once in a
  -- row.
  if (told or 1) == 1 and counts and (is_young or row ~= ROW)
    and (since or redis.call('EXISTS', lock) == 0) then
    local next = (since or timestamp()) .. (row == ROW and ROW or (row or '') .. ':')
    local name, waited, _, is_refused = grant_next(lock, queue, publish, nil, next)
    -- Unless it was granted, it is free.
    told = told or waited and 1 or tell(publish, channel, '0')
    if name and (not waited or waited < LONG) then
      return told
    end
    -- A node to which the slot is being moved has no listeners yet, nor all keys.
    counts = not is_refused
  end
  tell_next(queue, publish, counts)
  return told
end

-- How a release ends where there is a queue, or was one when a release granted the lock: the
-- arguments are those of pass_on. The lock is free whatever is found under the queue's key. Returns
-- what release.lua returns.
local function let_next_in(lock, publish, told, turns, channel)
  local is_done, answer = pcall(pass_on, lock, queue_of(lock), publish, told, turns, channel)
  return told or is_done and answer or tell(publish, channel, '0')
end

