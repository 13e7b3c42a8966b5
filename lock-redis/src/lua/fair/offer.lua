-- What goes behind offer.lua of permits: with a queue, the owner that is next is told, too.
--
-- KEYS[#KEYS] the queue, if there is one
local offer_to_all = offer
local function offer(publish, channel, free)
  local told = offer_to_all(publish, channel, free)
  if queue ~= KEYS[2] then
    -- Other data under the queue's key is no reason to keep permits.
    pcall(tell_next, publish)
  end
  return told
end

