-- Everything that happened on one process since its last call, in; the batches to send and the next wake time, out.
-- It interprets the policy table exactly as batching.decide does (sluice/batching/policy.py has the rule and its ties).
--
-- KEYS  1 policy     string: '<i4 i4 d' rows, servers (-1: elastic), drop_after (-1: never); then '<d i4' hold, take for each row;
--                  then the same for each table beside it, whose drop_after is not read. A table of several columns has 16 bytes
--                  in front: '<i4' the columns below 0, and 12 that are not read
--       2 arrived    list: when the waiting members without a slack came, in the order in which they were brought, seconds as %.17g
--       3 members    list: these members, in the same order; a member's first 16 bytes are its id
--       4 in_flight  hash: batch id -> cmsgpack {arrival times, members}; a batch id is PROCESS:SERIAL:NUMBER, and :PLACE
--                  behind it where the PLACE-th table beside the first released it
--       5 processes  zset: process name -> when it was last heard of
--       6 attempts   hash: member id -> how often it was lost; empty while nothing goes wrong
--       7 dead       list: the last 1000 members that were lost too often
--       8 epoch      string: which life of this queue it is; another one means that everything before is lost
--       9 arrival_stream  stream: when requests came, one entry for each call that accepted some (buffer_service/arrival_stream.py);
--                  all queues of a model that share its slot write the same one
--       10 taken   string: how many members have left in batches; it never falls while it is kept. A version that does not know of
--                  it leaves it as it is: while the two serve side by side the rate of service seems lower than it is, and a
--                  process of this version refuses before it must; what was measured fades within seconds of the other's end
--       11 beside  hash: place of a table beside the first -> how many of the batches in flight are its; a sweep counts anew, for
--                  a version that does not know of it takes batches out of in_flight all the same
--       12 with_slack zset: waiting members with a slack -> when their hold begins: when they arrived, and their slack. A member has
--                  one where the byte behind its id is 3, or 4 (a ticket: its body is where its caller waits); it is a double of the second byte behind that
--       13 hurried string: how many of these have a slack below 0. It is kept while a table has columns: who installs a policy
--                  deletes it, and the first call under one with columns counts
--       14 batch_stream  stream: what was measured of batches, one entry for each call that brought some
--                  (buffer_service/batch_stream.py); all queues of a model that share its slot write the same one
--       15 refused  string: how many requests were refused before they came to a queue, as too many waited; all queues of a model
--                  that share its slot count in the same one
-- ARGV  1 process    2 serial number of this call      3 now in seconds ('' : the server's clock)      4 longest queue allowed
--       5 lease in seconds   6 attempts allowed   7 leaving (1: release nothing, and forget this process once it serves nothing)
--       8 number of completed batches   9 number of served batches (-1: no sweep)
--       10 arrival times kept (0: none)   11 the ages of the arriving members at this call, '<f' seconds each, from which on their
--          holds run; behind these their sizes, '<f' each, where any was told
--       12 number of members that have gone   13 'PLACE:NUMBER,' for each table that has ended when it has released
--          so many batches in this call, the first having place 0
--       14 measured batches kept (0: none)   15 number of those that this call brings   16 these, packed
--       17 requests that were refused since the last call
--       18 the ages at this call, '<f' seconds each, of requests that left without having been here, which are recorded and count as taken
--       19 'PLACE:NUMBER,' for each table so many of whose servers are ejected, which count as busy but for its last
--       20 seconds by which the holds of the arriving members run early
--       then the ids of the completed batches, of the served batches, the members that have gone, and the arriving members
-- The clock may be set back: nobody arrived after now, nobody was heard of after now (queue_state.py has the rule).
-- The next to leave is the head of 3 or of 12, whose hold begins first, of equals that of 3.
-- What a table of one column costs is what it costs without there being others: nothing below is read or written for columns alone.
-- Returns { epoch, accepted, queue length, seconds until wake ('' : at an event), {{batch id, member...}...}, dropped, dead, taken,
--           servers of tables that are not elastic which have a batch in flight or are ejected, how many wait behind who comes now without a slack,
--           at a sweep whether all processes that were heard of lately lend bodies: 1, or 0 where one has a hexadecimal name; else -1,
--           at a sweep whether no process but this was heard of lately: 1 or 0; else -1 }

local process, serial = ARGV[1], ARGV[2]
local now = tonumber(ARGV[3])
if not now then
  local clock = redis.call('TIME')
  now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
end
local stamp = string.format('%.17g', now)

local header = redis.call('GETRANGE', KEYS[1], 0, 15)
if #header == 0 or redis.call('EXISTS', KEYS[8]) == 0 then
  return redis.error_reply('NOPOLICY no policy is installed for this queue')
end
local tables, drop_after, bounded, has_columns = {}, nil, 0, false
local start = 0
repeat
  local columns = 1
  local rows, servers, given_up_after = struct.unpack('<i4i4d', header)
  if rows < 0 then
    columns, start, has_columns = -rows, start + 16, true
    rows, servers, given_up_after = struct.unpack('<i4i4d', redis.call('GETRANGE', KEYS[1], start, start + 15))
    if rows < 2 * columns or rows % columns ~= 0 then return redis.error_reply('ERR the policy is no table') end
  end
  local rest = rows > 0 and redis.call('GETRANGE', KEYS[1], start + 4 + 12 * rows, start + 31 + 12 * rows) or ''
  if #tables == 8 or (#rest ~= 12 and #rest ~= 28) then -- the last row, and behind it nothing or the header of another table
    return redis.error_reply('ERR the policy is no table')
  end
  drop_after = drop_after or given_up_after
  tables[#tables + 1] = { rows = rows, columns = columns, servers = servers, first_row = start + 16 }
  if servers >= 0 then bounded = bounded + 1 end
  start, header = start + 16 + 12 * rows, string.sub(rest, 13)
until header == ''

local CHUNK = 1000 -- well below the stack that unpack may use

local function push(command, key, values)
  for first = 1, #values, CHUNK do
    redis.call(command, key, unpack(values, first, math.min(first + CHUNK - 1, #values)))
  end
end

-- A batch in flight; nil of what is no batch, which somebody put there or another version wrote.
local function unpacked(packed)
  local read, batch = pcall(cmsgpack.unpack, packed or '')
  if not (read and type(batch) == 'table' and type(batch[1]) == 'table' and type(batch[2]) == 'table') then return end
  for _, member in ipairs(batch[2]) do
    if type(member) ~= 'string' then return end
  end
  return batch
end

-- The place beside the first table of the one that released a batch; nil of the first's.
local function place_of(id)
  return string.match(id, '^[^:]*:[^:]*:[^:]*:([1-7])$')
end

-- A batch is in flight no more.
local function end_batch(id)
  local place = place_of(id)
  if redis.call('HDEL', KEYS[4], id) == 1 and place then redis.call('HINCRBY', KEYS[11], place, -1) end
end

-- Seconds by which a member may wait for longer than the table says; 0 of most.
local function slack_of(member)
  local version = string.byte(member, 17)
  if (version ~= 3 and version ~= 4) or string.byte(member, 18) ~= 0xCB or #member < 35 then return 0 end
  local slack = struct.unpack('>d', string.sub(member, 19, 26))
  return math.abs(slack) <= 86400 and slack or 0
end

-- How many of those with a slack have one below 0; of a policy without columns nobody asks.
local hurried, counted
if has_columns then
  counted = tonumber(string.match(redis.call('GET', KEYS[13]) or '', '^%d+$')) -- of 0.5 what is read is no row
  hurried = counted or 0
  local last = counted and 0 or redis.call('ZCARD', KEYS[12])
  for first = 0, last - 1, CHUNK do
    for _, member in ipairs(redis.call('ZRANGE', KEYS[12], first, first + CHUNK - 1)) do
      if slack_of(member) < 0 then hurried = hurried + 1 end
    end
  end
end

-- One with a slack has come (1), or left (-1).
local function note(member, came)
  if has_columns and slack_of(member) < 0 then hurried = hurried + came end
end

-- Of a user who may not do all that members with a slack need none is taken: the next call would fail too, and all after it.
local function may_line_up()
  redis.call('ZCARD', KEYS[12])
  redis.call('ZCOUNT', KEYS[12], 0, 0)
  redis.call('ZRANGE', KEYS[12], 0, 0)
  redis.call('ZREMRANGEBYRANK', KEYS[12], 1, 0)
  redis.call('LRANGE', KEYS[3], 0, 0)
end

-- A member takes its place among those with a slack; who is there already stays.
local function line_up(begins, member)
  if redis.call('ZADD', KEYS[12], 'NX', string.format('%.17g', begins), member) == 1 then note(member, 1) end
end

-- So many members came now.
local function date(count)
  local stamps = {}
  for i = 1, count do
    stamps[i] = stamp
  end
  push('RPUSH', KEYS[2], stamps)
end

-- The next so many leave: when the hold of each began, and the members.
local n_with_slack = 0
local function pop(count)
  if n_with_slack == 0 then return redis.call('LPOP', KEYS[2], count), redis.call('LPOP', KEYS[3], count) end
  local arrived = redis.call('LRANGE', KEYS[2], 0, count - 1)
  local members = redis.call('LRANGE', KEYS[3], 0, count - 1)
  local with_slack = redis.call('ZRANGE', KEYS[12], 0, count - 1, 'WITHSCORES')
  local times, taken = {}, {}
  local i, j = 1, 1
  for k = 1, count do
    local begins = with_slack[j + 1]
    if begins and (not arrived[i] or tonumber(begins) < tonumber(arrived[i])) then
      times[k], taken[k] = begins, with_slack[j]
      note(taken[k], -1)
      j = j + 2
    else
      times[k], taken[k] = arrived[i], members[i]
      i = i + 1
    end
  end
  if i > 1 then
    redis.call('LPOP', KEYS[2], i - 1)
    redis.call('LPOP', KEYS[3], i - 1)
  end
  if j > 1 then
    redis.call('ZREMRANGEBYRANK', KEYS[12], 0, (j - 1) / 2 - 1)
    n_with_slack = n_with_slack - (j - 1) / 2
  end
  return times, taken
end

-- Completions. An id that is not in flight any more was taken back from a process that was slow: nothing to do.
local argument = 20
for _ = 1, tonumber(ARGV[8]) do
  argument = argument + 1
  if redis.call('EXISTS', KEYS[6]) == 1 then
    local packed = redis.call('HGET', KEYS[4], ARGV[argument])
    local batch = unpacked(packed)
    for _, member in ipairs(batch and batch[2] or {}) do
      redis.call('HDEL', KEYS[6], string.sub(member, 1, 16))
    end
  end
  end_batch(ARGV[argument])
end

-- A sweep: this process lives and serves these; what nobody serves any more goes back to the head, oldest first.
local dead = {}
local function put_aside(member)
  redis.call('RPUSH', KEYS[7], member)
  redis.call('LTRIM', KEYS[7], -1000, -1)
  dead[#dead + 1] = member
end
local n_serving = tonumber(ARGV[9])
local all_lend, alone = -1, -1
if n_serving >= 0 then
  local serving = {}
  for _ = 1, n_serving do
    argument = argument + 1
    serving[ARGV[argument]] = true
  end
  local heard = redis.call('ZSCORE', KEYS[5], process)
  -- else the server may have been away, and all are late; or its clock was set back, and nobody knows how late he is
  local judges = heard and tonumber(heard) <= now and now <= tonumber(heard) + tonumber(ARGV[5])
  local set_back = heard and tonumber(heard) > now
  redis.call('ZADD', KEYS[5], stamp, process)
  local lost = {}
  local alive = {}
  local kept = {} -- batches of tables beside the first, by place
  for _, id in ipairs(redis.call('HKEYS', KEYS[4])) do
    local owner = string.sub(id, 1, 8)
    if alive[owner] == nil then
      local seen = tonumber(redis.call('ZSCORE', KEYS[5], owner) or '')
      if seen and seen > now then
        seen, set_back = now, true
        redis.call('ZADD', KEYS[5], stamp, owner)
      end
      alive[owner] = seen and now <= seen + tonumber(ARGV[5]) or false
    end
    if (judges and not alive[owner]) or (owner == process and not serving[id]) then
      local packed = redis.call('HGET', KEYS[4], id)
      local batch = unpacked(packed)
      end_batch(id)
      if not batch then put_aside(packed) end
      for i, member in ipairs(batch and batch[2] or {}) do
        lost[#lost + 1] = { tonumber(batch[1][i]) and batch[1][i] or stamp, member, string.sub(member, 1, 16), #lost }
      end
    elseif place_of(id) then
      kept[place_of(id)] = (kept[place_of(id)] or 0) + 1
    end
  end
  if #tables > 1 then
    redis.call('DEL', KEYS[11])
    for place, count in pairs(kept) do
      redis.call('HSET', KEYS[11], place, count)
    end
  end
  table.sort(lost, function(a, b) -- of equal age by id, as the order of 4 is anybody's
    local x, y = tonumber(a[1]), tonumber(b[1])
    if x ~= y then return x < y end
    if a[3] ~= b[3] then return a[3] < b[3] end
    return a[4] < b[4]
  end)
  local back = {}
  for _, entry in ipairs(lost) do
    if redis.call('HINCRBY', KEYS[6], entry[3], 1) >= tonumber(ARGV[6]) then
      redis.call('HDEL', KEYS[6], entry[3])
      put_aside(entry[2])
    else
      back[#back + 1] = entry
    end
  end
  for i = #back, 1, -1 do -- youngest first, so that the oldest ends at the head
    local entry = back[i]
    if slack_of(entry[2]) ~= 0 then
      line_up(tonumber(entry[1]), entry[2])
    else
      redis.call('LPUSH', KEYS[2], entry[1])
      redis.call('LPUSH', KEYS[3], entry[2])
    end
  end
  if set_back and redis.call('EXISTS', KEYS[12]) == 1 then -- behind a head that came long ago some may be dated after now
    local line = redis.call('ZRANGE', KEYS[12], 0, -1, 'WITHSCORES')
    for i = 1, #line, 2 do
      local latest = now + slack_of(line[i])
      if tonumber(line[i + 1]) > latest then redis.call('ZADD', KEYS[12], string.format('%.17g', latest), line[i]) end
    end
  end
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', string.format('(%.17g', now - 10 * tonumber(ARGV[5])))
  local names = redis.pcall('ZRANGE', KEYS[5], 0, -1) -- which the users of versions before there were classes may not
  all_lend = names.err and 0 or 1
  alone = #names == 1 and 1 or 0
  for _, name in ipairs(names) do
    if string.match(name, '^[0-9a-f]') then all_lend = 0 end
  end
end

-- The two lists are in step but for what somebody else did to them: a member without a time came now.
local waiting = redis.call('LLEN', KEYS[2])
local members = redis.call('LLEN', KEYS[3])
if waiting > members then redis.call('RPOP', KEYS[2], waiting - members) end
if waiting < members then date(members - waiting) end
if redis.call('EXISTS', KEYS[12]) == 1 then n_with_slack = redis.call('ZCARD', KEYS[12]) end
waiting = members + n_with_slack

-- Who has gone leaves.
for _ = 1, tonumber(ARGV[12]) do
  argument = argument + 1
  local index
  if slack_of(ARGV[argument]) ~= 0 then
    index = redis.call('ZREM', KEYS[12], ARGV[argument]) == 1
    if index then
      n_with_slack = n_with_slack - 1
      note(ARGV[argument], -1)
    end
  else
    index = redis.call('LPOS', KEYS[3], ARGV[argument])
    if index then
      redis.call('LREM', KEYS[3], 1, ARGV[argument])
      redis.call('LSET', KEYS[2], index, '')
      redis.call('LREM', KEYS[2], 1, '')
    end
  end
  if index then
    redis.call('HDEL', KEYS[6], string.sub(ARGV[argument], 1, 16))
    waiting = waiting - 1
  end
end

-- Arrivals, as many as fit.
local accepted = math.max(0, math.min(#ARGV - argument, tonumber(ARGV[4]) - waiting))
if accepted > 0 then
  local stamps, arrivals, ages, early = {}, {}, ARGV[11], tonumber(ARGV[20])
  for i = 1, accepted do
    local member = ARGV[argument + i]
    local slack = slack_of(member)
    local came = now - (math.max(0, (struct.unpack('<f', ages, 4 * i - 3))) + early)
    if slack ~= 0 then
      if n_with_slack == 0 and #arrivals == i - 1 then may_line_up() end -- before the first
      line_up(came + slack, member)
    else
      arrivals[#arrivals + 1] = member
      stamps[#arrivals] = string.format('%.17g', came)
    end
  end
  push('RPUSH', KEYS[2], stamps)
  push('RPUSH', KEYS[3], arrivals)
  waiting = waiting - n_with_slack + #arrivals
  if #arrivals < accepted then n_with_slack = redis.call('ZCARD', KEYS[12]) end
  waiting = waiting + n_with_slack
end

-- The record of arrivals. Nobody waits for it, so nothing that is wrong with it (somebody emptied the stream, which remembers its
-- last id all the same) may stop the queue: the stream is begun again.
local kept = tonumber(ARGV[10])
local function record(ages, sizes)
  if #ages == 0 or kept == 0 then return end
  local last = redis.pcall('XREVRANGE', KEYS[9], '+', '-', 'COUNT', 1)[1]
  local count = #ages / 4 + (last and tonumber(string.match(last[1], '%d+')) or 0)
  local oldest, id = string.format('%.0f', math.max(0, count - kept + 1)), string.format('%.0f-0', count)
  local entry = { 'call', struct.pack('<d', now) .. ages }
  if #sizes > 0 then
    entry[3], entry[4] = 'sizes', sizes
  end
  local added = redis.pcall('XADD', KEYS[9], 'MINID', '~', oldest, id, unpack(entry))
  if type(added) == 'table' and added.err then redis.call('DEL', KEYS[9]) end
end
local first_size = 4 * (#ARGV - argument) + 1
record(string.sub(ARGV[11], 1, 4 * accepted), string.sub(ARGV[11], first_size, first_size - 1 + 4 * accepted))
record(ARGV[18], '')

-- The record of batches, which may be emptied in the same way.
local batches_kept, measured = tonumber(ARGV[14]), tonumber(ARGV[15])
if measured > 0 and batches_kept > 0 then
  local last = redis.pcall('XREVRANGE', KEYS[14], '+', '-', 'COUNT', 1)[1]
  local count = measured + (last and tonumber(string.match(last[1], '%d+')) or 0)
  local oldest, id = string.format('%.0f', math.max(0, count - batches_kept + 1)), string.format('%.0f-0', count)
  local added = redis.pcall('XADD', KEYS[14], 'MINID', '~', oldest, id, 'call', struct.pack('<d', now), 'batches', ARGV[16])
  if type(added) == 'table' and added.err then redis.call('DEL', KEYS[14]) end
end

-- Those that were refused: demand all the same.
if ARGV[17] ~= '0' then redis.pcall('INCRBY', KEYS[15], ARGV[17]) end

-- The rule.
local leaving = ARGV[7] == '1'
if leaving and n_serving == 0 then redis.call('ZREM', KEYS[5], process) end
local batches, dropped = {}, {}
local taken = #ARGV[18] / 4
local wake_in = ''
local in_flight = {} -- by table; a batch of a table that the policy has not counts as the first's
if bounded > 0 then
  in_flight[1] = redis.call('HLEN', KEYS[4])
  for place = 1, #tables - 1 do
    in_flight[place + 1] = tonumber(redis.call('HGET', KEYS[11], place) or 0)
    in_flight[1] = in_flight[1] - in_flight[place + 1]
  end
  for place, servers in string.gmatch(ARGV[19], '(%d+):(%d+)') do
    local table_ = tables[place + 1]
    if table_ and table_.servers > 0 then
      in_flight[place + 1] = in_flight[place + 1] + math.min(servers, table_.servers - 1)
    end
  end
end
local left = {} -- batches that a table may still release, of those that may not release any number
for place, most in string.gmatch(ARGV[13], '(%d+):(%d+)') do
  left[place + 1] = tonumber(most)
end
local function has_ended(place)
  return left[place] ~= nil and left[place] <= 0
end
local function has_free_server(place)
  return tables[place].servers < 0 or in_flight[place] < tables[place].servers
end
local function row_of(table_)
  local row, columns = math.min(waiting, table_.rows - 1), table_.columns
  if columns > 1 then
    local patient = n_with_slack - math.max(0, math.min(hurried, n_with_slack)) -- whatever somebody else did to 12 or 13
    row = math.min(waiting - patient, table_.rows / columns - 1) * columns + math.min(patient, columns - 1)
  end
  local offset = table_.first_row + 12 * row
  local hold, take = struct.unpack('<di4', redis.call('GETRANGE', KEYS[1], offset, offset + 11))
  -- of no policy of the buffer: it would release nothing for ever, or more than wait
  if hold < 0 or hold ~= hold or (hold < math.huge and (take < 1 or take > waiting)) then
    error(redis.error_reply('ERR the policy is no table'))
  end
  return hold, take
end
while waiting > 0 and not leaving do -- one member at least leaves in each round, so that there are no more of these than wait
  local oldest = math.huge
  if waiting > n_with_slack then
    oldest = tonumber(redis.call('LINDEX', KEYS[2], 0))
    if not (oldest and oldest <= now) then
      redis.call('DEL', KEYS[2])
      date(waiting - n_with_slack)
      oldest = now
    end
  end
  if n_with_slack > 0 then
    local first = redis.call('ZRANGE', KEYS[12], 0, 0, 'WITHSCORES')
    if tonumber(first[2]) > now + slack_of(first[1]) then
      for _, member in ipairs(redis.call('ZRANGE', KEYS[12], 0, -1)) do
        redis.call('ZADD', KEYS[12], string.format('%.17g', now + slack_of(member)), member)
      end
      first = redis.call('ZRANGE', KEYS[12], 0, 0, 'WITHSCORES')
    end
    oldest = math.min(oldest, tonumber(first[2]))
  end
  if drop_after >= 0 and now > oldest + drop_after then
    local _, members = pop(1)
    dropped[#dropped + 1] = members[1]
    redis.call('HDEL', KEYS[6], string.sub(members[1], 1, 16))
    waiting = waiting - 1
  else
    local by, take -- the first table that releases, and how many
    local wakes_at = math.huge
    local others_end = false -- the wait at this length, of tables that have not ended
    for place, table_ in ipairs(next(left) and tables or {}) do
      others_end = others_end or (not has_ended(place) and row_of(table_) < math.huge)
    end
    for place, table_ in ipairs(tables) do
      if not by and has_free_server(place) and not (others_end and has_ended(place)) then
        local hold, takes = row_of(table_)
        if hold == 0 or now >= oldest + hold then
          by, take = place, takes
        else
          wakes_at = math.min(wakes_at, oldest + hold)
        end
      end
    end
    if not by then
      if wakes_at < math.huge then wake_in = string.format('%.17g', wakes_at - now) end
      break
    end
    local times, members = pop(take)
    local id = process .. ':' .. serial .. ':' .. #batches
    if by > 1 then
      id = id .. ':' .. (by - 1)
      redis.call('HINCRBY', KEYS[11], by - 1, 1)
    end
    redis.call('HSET', KEYS[4], id, cmsgpack.pack({ times, members }))
    table.insert(members, 1, id)
    batches[#batches + 1] = members
    if bounded > 0 then in_flight[by] = in_flight[by] + 1 end
    if left[by] then left[by] = left[by] - 1 end
    waiting = waiting - take
    taken = taken + take
  end
end
if has_columns then
  hurried = math.max(0, math.min(hurried, n_with_slack))
  if hurried ~= counted then redis.call('SET', KEYS[13], hurried) end
end
if taken > 0 then
  taken = redis.call('INCRBY', KEYS[10], taken)
else
  taken = tonumber(redis.call('GET', KEYS[10]) or 0) or redis.call('INCRBY', KEYS[10], 0) -- which says that it is no number
end

local busy = 0
for place, count in ipairs(in_flight) do
  if tables[place].servers >= 0 then busy = busy + count end
end
local behind = n_with_slack > 0 and redis.call('ZCOUNT', KEYS[12], stamp, '+inf') or 0
return { redis.call('GET', KEYS[8]), accepted, waiting, wake_in, batches, dropped, dead, taken, busy, behind, all_lend, alone }
