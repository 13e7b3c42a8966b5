-- rights: whether the user of this connection may run these commands. Runs none of them.
--
-- ARGV    for each command the number of its words, then the words: as many as the command needs,
-- or the server may stop
--
-- Returns for each 1 the user may, 0 it may not, 2 there is no such command; nothing before Redis
-- 7, which cannot be asked.
--
-- Atomic for no reason: it saves a request for each command, and needs no right but that to run
-- scripts.

if not redis.acl_check_cmd then
  return false
end
local answers, at = {}, 1
while at <= #ARGV do
  local last = at + tonumber(ARGV[at])
  local is_known, is_allowed = pcall(redis.acl_check_cmd, unpack(ARGV, at + 1, last))
  answers[#answers + 1] = (not is_known and 2) or (is_allowed and 1) or 0
  at = last + 1
end
return answers
