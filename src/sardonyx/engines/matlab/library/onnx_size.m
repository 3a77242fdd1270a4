function s = onnx_size(x, rank)
% The sizes of an array of RANK dimensions; MATLAB drops trailing ones.
s = ones(1, max([rank, 2, ndims(x)]));
s(1:ndims(x)) = size(x);
s = s(1:rank);
end
