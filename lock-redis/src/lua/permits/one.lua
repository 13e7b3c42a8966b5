-- One permit, whoever has it.
local function ids(id)
  return {id}
end

