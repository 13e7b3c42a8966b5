-- Lua counts in doubles: above this a token would not be exact. `redis.call` writes all of their
-- seventeen digits.
local LARGEST = 9007199254740991

-- The digits of the server's time that tell its 100 s: worked out once in a run. A later time comes
-- behind them in the order of texts.
local since

-- Gives a lock to an owner, with tokens of this counter: the first one is returned, as in
-- acquire.lua, or an error. If it has the lock already (`ours`), it gets the same ones, and its
-- lease begins anew. `keep` and `reserve` are ARGV[3] and ARGV[4] there. With `must_exist`
-- no counter is made: a release does not declare its key, so while the slot is being moved the
-- counter may still be on the other node, and a second one would stop its move.
local function grant(lock, counter, ours, lease, owner, keep, reserve, must_exist)
  -- Tokens first: what fails must fail before the lock or its lease is written, and of several
  -- writes in a script only the first is refused when the memory is full.
  local token = 1
  if keep then
    token = timestamp()
    since = since or string.sub(token, 1, -9)
    local replaces = not (ours or reserve or keep == '0')
    local stored
    if replaces and must_exist then
      stored = redis.call('SET', counter, token, 'XX', 'KEEPTTL', 'GET')
    elseif replaces then
      stored = redis.call('SET', counter, token, 'KEEPTTL', 'GET')
    else
      stored = redis.call('GET', counter)
    end
    -- Of the same 100 s: the expiry, if there is one, was set in them, and is not to be reckoned
    -- anew each time.
    local is_recent = stored and #stored == #token and stored >= since
    if not (replaces and is_recent and stored < token) then
      local value, wrong = tonumber(stored)
      local first = tonumber(token)
      if must_exist and not stored then
        wrong = 'is not there'
      elseif stored and not string.find(stored, '^%d+$') then
        wrong = 'is not a whole number'
      elseif stored and value > LARGEST then
        wrong = 'is beyond 2^53'
      elseif ours and stored then
        -- The range that the first copy got.
        first = value - (reserve or 0)
      else
        if stored and value >= first then
          first = value + 1
        end
        local last = first + (reserve or 0)
        -- For ever also if Redisson's RFencedLock made it: it counts from here.
        local ttl = keep == '0' and -1 or stored and redis.pcall('PTTL', counter)
        if type(ttl) == 'table' then
          if replaces then
            redis.call('SET', counter, stored, 'KEEPTTL')
          end
          -- Asked again, now that nothing has changed, it says which command it is.
          return redis.call('PTTL', counter)
        end
        if last > LARGEST then
          wrong = 'has come to its end at 2^53'
        elseif ttl == -1 then
          redis.call('SET', counter, last)
        else
          redis.call('SET', counter, last, 'PXAT', math.floor(last / 1000) + keep)
        end
      end
      if wrong then
        if replaces and stored then
          redis.call('SET', counter, stored, 'KEEPTTL')
        elseif replaces and not must_exist then
          redis.call('DEL', counter)
        end
        return redis.error_reply('WRONGTYPE the token counter ' .. wrong)
      end
      token = string.format('%.0f', first)
    end
  end

  if not ours then
    local refused = take(lock, owner, lease)
    if refused then
      return refused
    end
  else
    -- Never shorter: a renewal of a longer lease may have come in between. Written also where
    -- nothing changes: since 7.2 WAIT looks only at what its own connection wrote, and without a
    -- write says that all replicas have it.
    redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), tonumber(lease)))
  end
  return token
end

