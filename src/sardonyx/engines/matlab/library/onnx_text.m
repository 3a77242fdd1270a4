function y = onnx_text(x)
% Text as a cell array of character rows.
y = x;
if ischar(x)
    y = {x};
elseif ~iscell(x)
    y = cellstr(x);
end
end
