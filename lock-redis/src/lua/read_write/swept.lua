-- Behind the end of a reader's hold, where no slot can be moving: some that died end with it.
local settle_others = settle
local function settle(key, channel, publish)
  sweep(key, ARGV[1], 2, KEYS[2])
  return settle_others(key, channel, publish)
end

