-- Puts plans back that a Redis has lost. KEYS: documents, history. ARGV: who, why, then model and document of each plan.
-- Answers how many; 0 where there is a history: somebody was quicker, or nothing was lost.
if redis.call('EXISTS', KEYS[2]) == 1 then
  return 0
end
for i = 3, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  redis.call('XADD', KEYS[2], '*', 'document', ARGV[i + 1], 'by', ARGV[1], 'why', ARGV[2])
end
return (#ARGV - 2) / 2
