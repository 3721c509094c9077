-- What somebody else has put under keys of the buffer goes out of the way: it is renamed, and kept for a while.
--
-- KEYS  n keys, then n names under which they are set aside, then keys that are deleted where one of the n was
-- ARGV  1 n     2 seconds for which what is set aside is kept
--       3... what each of the n must be, if it is there: a type of Redis; or
--            table      a policy as advance.lua reads it
--            integer    a string that is one
--            integers   a hash whose values are
-- Returns { {key, its type, under what it is set aside, why it was not ('' : it was)}... } of those that are something else

local n, life = tonumber(ARGV[1]), ARGV[2]

local function is_integer(value)
  return #value <= 15 and string.find(value, '^%-?%d+$') ~= nil -- more can be added to it
end

-- Whether these rows release what waits, one member at least and no more than there are, or hold.
local function are_rows(key, start, rows, columns)
  local packed = redis.call('GETRANGE', key, start, start + 12 * rows - 1)
  for row = 0, rows - 1 do
    local hold, take = struct.unpack('<di4', packed, 12 * row + 1)
    local waiting = math.floor(row / columns) + row % columns
    if not (hold >= 0) or (hold < math.huge and (take < 1 or take > waiting)) then return false end
  end
  return true
end

local function fits(key, kind, shape)
  if shape == 'table' then
    if kind ~= 'string' then return false end
    local start, header, tables = 0, redis.call('GETRANGE', key, 0, 15), 0
    repeat
      if #header < 16 or tables == 8 then return false end
      local rows, columns = struct.unpack('<i4', header), 1
      if rows < 0 then -- the columns of a table
        columns = -rows
        start, header = start + 16, redis.call('GETRANGE', key, start + 16, start + 31)
        if #header < 16 then return false end
        rows = struct.unpack('<i4', header)
        if rows < 2 * columns or rows % columns ~= 0 then return false end
      end
      local rest = rows > 0 and redis.call('GETRANGE', key, start + 4 + 12 * rows, start + 31 + 12 * rows) or ''
      if #rest < 12 or rows > 65536 or not are_rows(key, start + 16, rows, columns) then return false end
      start, header, tables = start + 16 + 12 * rows, string.sub(rest, 13), tables + 1
    until header == ''
    return true
  elseif shape == 'integer' then
    return kind == 'string' and is_integer(redis.call('GET', key))
  elseif shape == 'integers' then
    if kind ~= 'hash' then return false end
    for _, field in ipairs(redis.call('HKEYS', key)) do
      if not is_integer(redis.call('HGET', key, field)) then return false end
    end
    return true
  end
  return kind == shape
end

local found, moved = {}, false
for i = 1, n do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and not fits(KEYS[i], kind, ARGV[2 + i]) then
    local renamed = redis.pcall('RENAME', KEYS[i], KEYS[n + i])
    local stays = renamed.err or ''
    if stays == '' then
      redis.call('EXPIRE', KEYS[n + i], life)
      moved = true
    end
    found[#found + 1] = { KEYS[i], kind, KEYS[n + i], stays }
  end
end
for i = 2 * n + 1, moved and #KEYS or 0 do
  redis.call('DEL', KEYS[i])
end
return found
