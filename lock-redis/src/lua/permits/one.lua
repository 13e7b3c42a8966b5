-- One permit, of any owner.
local function ids(id)
  return {id}
end

