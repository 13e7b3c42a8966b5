-- which: the run_id of the server that runs this.
--
-- KEYS two of different slots, of which it uses none: a proxy sends it to the server of one
return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
