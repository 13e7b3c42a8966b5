-- The permits of one acquisition: 16 bytes each, which are those of its owner and the number of the
-- permit.
local function ids(owner, count)
  local all = {}
  for i = 0, count - 1 do
    all[i + 1] = owner .. string.char(math.floor(i / 65536), math.floor(i / 256) % 256, i % 256)
  end
  return all
end

