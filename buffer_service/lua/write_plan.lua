-- Puts a plan into force. KEYS: lease, documents, history, given. ARGV: who leads ('' of a person), model, document, by, why, entries kept, plans kept.
-- What is not by who leads is kept as given besides. Answers 'written'; 'lease' where another leads; 'room' where there is none for one model more.
if ARGV[1] ~= '' and redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'lease'
end
if redis.call('HEXISTS', KEYS[2], ARGV[2]) == 0 and redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[7]) then
  return 'room'
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
if ARGV[1] ~= ARGV[4] then
  redis.call('HSET', KEYS[4], ARGV[2], ARGV[3])
end
redis.call('XADD', KEYS[3], 'MAXLEN', ARGV[6], '*', 'document', ARGV[3], 'by', ARGV[4], 'why', ARGV[5])
return 'written'
