-- What goes before release.lua of permits, for a fair semaphore: the owner waits no longer. Other
-- data under the queue's key is no reason to keep permits.
pcall(function()
  if leave(waiter) > 0 then
    tell_next(ARGV[4])
    -- It is told once, also if permits are freed.
    tell_next = function() end
  end
end)

