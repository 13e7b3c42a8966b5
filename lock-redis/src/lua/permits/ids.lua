-- The permits of one acquisition: 16 bytes each, which are those of its owner and the number of the
-- permit.
local function ids(owner, count)
  local all, char, head = {}, string.char, nil
  for i = 0, count - 1 do
    local low = i % 256
    if low == 0 then
      head = owner .. char(math.floor(i / 65536), math.floor(i / 256) % 256)
    end
    all[i + 1] = head .. char(low)
  end
  return all
end

